#!/usr/bin/env python3
"""A plugin of the Agent Forge plugin protocol v1 that puts text in upper case.

It needs nothing but the standard library. Change `operation` to make it yours.
"""

import json
import re
import sys

FRAME_BYTES, TEXT_BYTES = 1048576, 65536
LIMITS = {
    "frame_bytes": FRAME_BYTES,
    "progress_frames": 128,
    "text_bytes": TEXT_BYTES,
    "progress_text_bytes": 1024,
    "commit_subject_bytes": 256,
}
KNOWN = ["text", "workspace_edit", "progress", "cancel", "commit_subject", "agent_report"]
SUPPORTED = ["text"]


def operation(text):
    """What this plugin is for."""
    return text.upper()


class Rejected(Exception):
    """The host broke the protocol: nothing more is written, and the exit is 1."""


def need(condition, what):
    if not condition:
        raise Rejected(what)


def no_number(text):
    raise Rejected("a number is no integer: " + text)


def unique(pairs):
    members = dict(pairs)
    need(len(members) == len(pairs), "a member name stands twice")
    return members


def read_frame():
    """Reads one frame: compact JSON in UTF-8, one line, not too long."""
    line = sys.stdin.buffer.readline(FRAME_BYTES + 1)
    need(line.endswith(b"\n"), "a frame is too long, or has no line end")
    text = line[:-1].decode("utf-8")  # fails when it is not UTF-8
    outside_strings = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    need(not re.search(r"\s", outside_strings), "a frame is not compact")
    frame = json.loads(text, object_pairs_hook=unique, parse_float=no_number, parse_constant=no_number)
    json.dumps(frame, ensure_ascii=False).encode("utf-8")  # fails on half a surrogate pair
    return frame


def expect(frame, kind, members):
    """Checks the members that every frame has, and that it has no others but these."""
    need(type(frame) is dict, "a frame is no object")
    need(set(frame) == {"version", "id", "type", *members}, "a member is missing or unknown")
    need(frame["version"] == "v1", "version is not v1")
    need(frame["type"] == kind, "a frame is not " + kind)
    need(type(frame["id"]) is str and re.fullmatch("[0-9a-f]{32}", frame["id"]), "id is not 32 hex digits")


def write_frame(session, kind, **members):
    frame = {"version": "v1", "id": session, "type": kind, **members}
    sys.stdout.buffer.write(json.dumps(frame, separators=(",", ":")).encode("ascii") + b"\n")
    sys.stdout.buffer.flush()


def main():
    offer = read_frame()
    expect(offer, "initialize", ["capabilities", "limits"])
    session, offered = offer["id"], offer["capabilities"]
    need(offer["limits"] == LIMITS, "limits are not those of v1")
    need(type(offered) is list and all(c in KNOWN for c in offered), "a capability is unknown")
    need(len(set(offered)) == len(offered), "a capability is offered twice")
    selected = [c for c in offered if c in SUPPORTED]
    need("text" in selected, "the operation text is not offered")
    write_frame(session, "initialized", capabilities=selected)

    request = read_frame()
    expect(request, "execute", ["operation", "input"])
    need(request["id"] == session, "id is not the session's")
    need(request["operation"] == "text", "the operation is not text")
    need(type(request["input"]) is str, "input is no string")
    need(len(request["input"].encode("utf-8")) <= TEXT_BYTES, "input is too long")

    output = operation(request["input"])
    if len(output.encode("utf-8")) <= TEXT_BYTES:
        write_frame(session, "result", output=output)
    else:
        write_frame(session, "failure", category="execution_failed")


if __name__ == "__main__":
    try:
        main()
    except Exception as problem:  # of whatever kind: it is never told on stdout
        sys.exit(f"rejected: {problem}")
