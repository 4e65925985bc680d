#!/usr/bin/env python3
"""Prints every command of horarun that recipes show, each as a JSON list of its words.

    horarun_lines.py FILE...

FILE is a text in Markdown, of which the lines of fenced blocks that begin with "horarun " are taken, or
YAML, of which lists are taken that begin with "horarun". Exit code 1 where a file has none."""
import json
import shlex
import sys

import yaml


def of_markdown(text):
    for block in text.split("```")[1::2]:
        for line in block.replace("\\\n", " ").split("\n"):
            if line.startswith("horarun ") and not line.startswith("horarun: "):
                yield shlex.split(line, comments=True)


def of_yaml(node):
    if isinstance(node, list) and node and node[0] == "horarun":
        yield node
    elif isinstance(node, (list, dict)):
        for child in node.values() if isinstance(node, dict) else node:
            yield from of_yaml(child)


def main():
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if path.endswith(".yaml"):
            lines = [line for part in yaml.safe_load_all(text) for line in of_yaml(part)]
        else:
            lines = list(of_markdown(text))
        if not lines:
            sys.exit(f"{path} has no command of horarun")
        if not all(isinstance(word, str) for line in lines for word in line):
            sys.exit(f"{path}: a word of a command is no string: put it into quotes")
        for line in lines:
            print(json.dumps(line[1:]))


if __name__ == "__main__":
    main()
