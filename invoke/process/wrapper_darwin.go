package process

const haveWrapper = false
