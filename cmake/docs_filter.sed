#!/bin/sed -Ef
# For Doxygen 1.9: links to pages without their section, to recipes by name; other files are no pages.
s/\]\(([^):]*\.md)#[^)]*\)/](\1)/g
s/\]\(([^):]*\/)?([a-z_]+\.cpp)\)/](@ref \2)/g
s/(^|[^!])\[([^][]*)\]\(([^):@]*[./][^):@]*[^d):@])\)/\1\2/g
