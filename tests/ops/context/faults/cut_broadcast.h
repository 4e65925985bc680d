/// A broadcast that is cut off while it arrives.
#pragma once

namespace hora::test {

/// Rank 0 is stopped as soon as the first bytes of what it broadcasts have come to rank 1, on
/// another node, which then runs out of time. Rank 1 uses the memory for something else once it has
/// the error, lets rank 0 go on, and says whether the memory is left alone. Returns the exit code.
int cut_broadcast();

}  // namespace hora::test
