/// Wording that tests pin, in golden files.
#pragma once

#include <string>

namespace hora::internal::test {

/// Expects `text` to be what the golden file `file`, a path in tests/, has below its line
/// `=== name`. With TEST_UPDATE_GOLDEN=1 in the environment writes it there instead.
void expect_golden(const std::string& file, const std::string& name, const std::string& text);

}  // namespace hora::internal::test
