/// The command line of a program that there is not.
#pragma once

#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "examples/vision/train/option_table.h"

namespace vision::test {

using Words = std::vector<const char*>;

// Images of 32x32, for which AlexNet is too large.
inline const ProgramDescription program{
    .name = "small", .summary = "Trains.", .data = "a folder", .image_side = 32};

inline ParsedOptions parse(Words words, const TrainingOptions& defaults = {}) {
  words.insert(words.begin(), "small");
  return parse_options(program, defaults, static_cast<int>(words.size()), words.data());
}

inline ParsedOptions parse_beside_data(Words words, const TrainingOptions& defaults = {}) {
  words.insert(words.begin(), {"--data", "d"});
  return parse(std::move(words), defaults);
}

struct Wrong {
  Words words;        ///< beside --data d
  const char* named;  ///< what the message must say
};

inline void expect_refused(const std::vector<Wrong>& all) {
  for (const Wrong& wrong : all) {
    const auto parsed = parse_beside_data(wrong.words);
    EXPECT_FALSE(parsed.options.has_value()) << testing::PrintToString(wrong.words);
    EXPECT_EQ(parsed.exit_code, 2);
    EXPECT_THAT(parsed.text, testing::HasSubstr(wrong.named));
  }
}

}  // namespace vision::test
