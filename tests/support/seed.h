/// The random seed of a test run. main() prints it; TEST_SEED=<number> repeats a run.
#pragma once

#include <cstdint>
#include <random>

namespace hora::internal::test {

/// This run's seed: TEST_SEED, else a random one; equal on all ranks of an MPI test.
std::uint64_t seed();

/// A generator for the current test, made from seed(), the test's name and `salt`: a test run alone
/// by --gtest_filter draws the same numbers. Equal on all ranks unless the salt is the rank.
std::mt19937_64 generator(std::uint64_t salt = 0);

/// For main(): TEST_SEED from the environment, else a random number. Throws std::invalid_argument
/// where TEST_SEED is not an unsigned decimal number of 64 bits.
std::uint64_t choose_seed();
/// For main(): fixes what seed() returns.
void set_seed(std::uint64_t value);

}  // namespace hora::internal::test
