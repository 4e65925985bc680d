/// Settings of the process that hora changes or checks.
#pragma once

#include <optional>
#include <string>

namespace hora::internal {

/// Keeps large gradients from being given back to the kernel after each step (up to 26,000 page
/// faults a step). False where this C library takes neither the large nor the small thresholds.
bool keep_large_allocations();

/// What to tell the user when the engine shares its only core with the main thread though the host
/// has cores that no rank uses; nothing otherwise. Pure.
std::optional<std::string> binding_advice(int cores_of_rank, int cores_of_host, int ranks_of_host);

int cores_of_process();
int cores_of_host();

}  // namespace hora::internal
