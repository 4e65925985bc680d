/// Runs a program through hora's public headers.
#pragma once

#include <string>

#include "tests/conformance/differential/program.h"

namespace hora::internal::test {

/// Collective: starts the ranks with the program's settings, and runs its sets, its steps, and an
/// end of all on each. What those of this process found wrong; empty where everything was as the
/// model says, and every mismatch the same error on all members of its set. Where ranks have
/// devices every other tensor lies there.
std::string run_program(const Program& program);

}  // namespace hora::internal::test
