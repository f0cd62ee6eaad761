package procevent

import "hawser/internal/dirfd"

// openRead opens a regular file and reads it, at most limit+1 bytes, so that one
// that is longer shows by its length. The file stays open. A pass opens thousands
// of them, so it goes without an os.File.
//
// Errors: those of dirfd.Dir.OpenRaw; the errno of a failed read.
func openRead(dir *dirfd.Dir, name string, limit int64) (dirfd.File, dirfd.Info, []byte, error) {
	file, info, err := dir.OpenRaw(name)
	if err != nil {
		return file, info, nil, err
	}
	data := make([]byte, min(info.Size, limit)+1)
	filled := 0
	for filled < len(data) {
		n, err := file.Read(data[filled:])
		if err != nil {
			file.Close()
			return file, info, nil, err
		}
		if n == 0 {
			break
		}
		filled += n
	}
	return file, info, data[:filled], nil
}

// readFile is openRead for a file that need not stay open.
func readFile(dir *dirfd.Dir, name string, limit int64) ([]byte, dirfd.Info, error) {
	file, info, data, err := openRead(dir, name, limit)
	if err == nil {
		file.Close()
	}
	return data, info, err
}
