# Prints the variable of each field of Settings (settings.h), and the first paragraph of its comment.
/^struct Settings \{/ { inside = 1; next }
!inside { next }
/operator==/ { exit }
/^  \/\/\/ / { if (!ended) text = text (text == "" ? "" : " ") substr($0, 7); next }
/^  \/\/\/$/ { ended = 1; next }
NF {
  name = $0
  sub(/ *[={].*/, "", name)
  sub(/.* /, "", name)
  gsub(/["\\]/, "\\\\&", text)
  printf "{\"HORA_%s\", \"%s\"},\n", toupper(name), text
  text = ""
  ended = 0
}
