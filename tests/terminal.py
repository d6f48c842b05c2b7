"""A program on a pseudo-terminal, and what its user then sees."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def on_terminal(program: str, cwd: Path, columns: int = 80) -> str:
    """All that a Python program writes to a terminal of this width."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.environ |= {"TERM": "xterm", "COLUMNS": str(columns)}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execv(sys.executable, [sys.executable, "-c", program])
    written = b""
    try:
        while block := os.read(terminal, 65536):
            written += block
    except OSError:  # the terminal is gone with the program
        pass
    os.waitpid(child, 0)
    os.close(terminal)
    return written.decode()


def screen(written: str) -> list[str]:
    """The lines that stand on a terminal at the end. Knows what rich writes: cursor up, erase line, colours."""
    lines, row, column = [""], 0, 0
    for code, command, control, text in _TOKEN.findall(written):
        if command == "A":
            row = max(0, row - int(code or 1))
        elif command == "K":
            assert code == "2", code
            lines[row] = ""
        elif command:
            assert command in "mhl", command  # colours; the cursor is hidden and shown
        elif control == "\r":
            column = 0
        elif control == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]
