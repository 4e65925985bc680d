/// Requires what holds of any input: where it does not, the program ends, and the fuzzer keeps the
/// input.
#pragma once

#include <cstdio>
#include <cstdlib>

#define HORA_REQUIRE(condition)                                                          \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)
