/// Wording that tests pin, in golden files.
#pragma once

#include <functional>
#include <string>

namespace hora::internal::test {

/// Expects `text` to be what the golden file `file`, a path in tests/, has below its line
/// `=== name`. With TEST_UPDATE_GOLDEN=1 in the environment writes it there instead.
void expect_golden(const std::string& file, const std::string& name, const std::string& text);

/// Expects each `$ line` of a golden file to be followed by outcome_of(line); lines that begin with
/// `//` are comments. With TEST_UPDATE_GOLDEN=1 writes the outcomes. Returns the number of command
/// lines.
int expect_golden_outcomes(const std::string& file,
                           const std::function<std::string(const std::string&)>& outcome_of);

}  // namespace hora::internal::test
