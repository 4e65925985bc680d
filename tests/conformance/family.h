/// The collectives as one: what must hold for each of them alike.
#pragma once

#include <hora/hora.h>

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {

using AnyHandle = std::variant<Handle, ResultHandle>;

struct Family {
  std::string name;
  /// Starts it on 12 ones: the right tensor whichever rank submits it.
  std::function<AnyHandle(const Member&, const Placed& tensor, const std::string& name,
                          ProcessSet set)>
      start;
  /// The same, waited for inside; returns when the result is right, fails the test where not.
  std::function<void(const Member&, const std::string& name, ProcessSet set)> run;
};

const std::vector<Family>& families();

/// An operation under way, with its memory.
struct Started {
  std::vector<float> values;
  Placed tensor;
  AnyHandle handle;
};
Started start(const Family& family, const Member& member, const std::string& name, ProcessSet set);
void wait(Started& started);

}  // namespace hora::internal::test
