/// The exceptions of fault_program that are caught in the context's scope.
#pragma once

namespace hora::test {

/// All ranks throw and catch while the context lives, one of them before the others submit the
/// same; what it then allocates is its own. Gives the exit status.
int catch_inside();

}  // namespace hora::test
