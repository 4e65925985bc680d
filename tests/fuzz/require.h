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

/// Requires a reason where there is no value. Returns whether there is one.
template <class Expected>
bool has_value_or_reason(const Expected& result) {
  HORA_REQUIRE(result || !result.error().empty());
  return result.has_value();
}
