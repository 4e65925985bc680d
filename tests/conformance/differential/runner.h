/// Runs a program through hora's public headers.
#pragma once

#include <string>

#include "tests/conformance/differential/program.h"

namespace hora::test {

/// Collective: init() with the program's settings, its sets, its steps, and an end of all. What
/// this rank found wrong; empty where everything was as the model says, and every mismatch the same
/// error on all members of its set.
std::string run_program(const Program& program, int rank);

}  // namespace hora::test
