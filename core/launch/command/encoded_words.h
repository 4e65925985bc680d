/// A list of words as one word, for command lines that others read on the way. Pure.
///
/// `./train --epochs 3` is `./train,--epochs,3`. mpirun, which looks for its own options among a
/// program's arguments, and takes `:` for the start of another program, finds none in it. Bytes
/// other than [A-Za-z0-9._/=+-] are written as %XX (RFC 3986, 2.1), a dash at the beginning, too.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

/// At least one word.
std::string encode_words(const std::vector<std::string>& words);

/// The error says at which byte the text is none of encode_words().
tl::expected<std::vector<std::string>, std::string> decode_words(std::string_view text);

}  // namespace hora::launch
