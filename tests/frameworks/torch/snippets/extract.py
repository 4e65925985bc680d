"""Makes test sources of the C++ code in documents: of Markdown the ```cpp blocks, of headers the
comments that are indented by four more spaces.

Usage: extract.py ROOT FOLDER DOCUMENT...

FOLDER/snippets_test.cpp: a case for each snippet, which sees the names in surroundings.h
FOLDER/program_DOCUMENT_NUMBER.cpp: each block that has a main()
"""

import pathlib
import re
import sys

MARKDOWN = re.compile(r"^ *```cpp\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"((?:^ *///     .*\n)(?: *///(?:     .*)?\n)*)", re.MULTILINE)

CASE = """
struct {name} : snippets::{base} {{
  void run() {{
#line {line} "{document}"
{code}{end}  }}
}};
TEST(Snippets, {name}) {{ {name}().run(); }}
"""


def case(name, document, line, code):
    declares = "DistributedOptimizer optimizer(" in code
    base, end = "World", ""
    if "hora::init(" in code:
        base = "Program"
    elif not declares and re.search(r"\boptimizer\b", code):
        base = "Training"
    elif declares and "optimizer)" not in code and ".step()" not in code:
        end = "hora::broadcast_parameters(world, *model); train_one_step(optimizer);\n"
    return CASE.format(**locals())


def main(root, folder, *documents):
    sources = {}
    includes, cases = ['"tests/frameworks/torch/snippets/surroundings.h"'], []
    for document in documents:
        text = (pathlib.Path(root) / document).read_text()
        is_header, programs = document.endswith(".h"), 0
        if is_header:
            includes.append(f"<{document.split('/include/')[1]}>")
        for block in (COMMENT if is_header else MARKDOWN).finditer(text):
            code, line = block[1], text.count("\n", 0, block.start(1)) + 1
            name = re.sub(r"\W", "_", document)
            if is_header:
                code = re.sub(r"^ *///( {5})?", "", code, flags=re.MULTILINE)
            if re.search(r"^int main\(", code, re.MULTILINE):
                programs += 1
                source = f'#line {line} "{document}"\n{code}'
                sources[f"program_{name}_{programs}.cpp"] = source
                continue
            includes += re.findall(r"^#include (.*)", code, re.MULTILINE)
            code = re.sub(r"^#include .*", "", code, flags=re.MULTILINE)
            cases.append(case(f"{name}_{line}", document, line, code))
    lines = [f"#include {include}\n" for include in dict.fromkeys(includes)]
    sources["snippets_test.cpp"] = "".join(lines + cases)

    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.cpp"):
        if old.name not in sources:
            old.unlink()
    for name, source in sources.items():
        path = folder / name
        if not path.exists() or path.read_text() != source:
            path.write_text(source)


main(*sys.argv[1:])
