"""What the adapter imports."""


def poll(given):
    try:
        with open(given["config_ref"], encoding="utf-8") as file:
            return {"status": "result", "output": file.read()}
    except FileNotFoundError:
        return {"status": "no-result", "output": ""}


def is_done(given):
    return {"value": given["content"] == "done"}


operations = {
    "source.poll": poll,
    "result.classify": lambda given: {"classification": "read"},
    "result.terminal": is_done,
    "result.silent": is_done,
}
