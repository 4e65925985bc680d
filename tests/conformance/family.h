/// The collectives as one: what must hold for each of them alike.
#pragma once

#include <hora/hora.h>

#include <functional>
#include <string>
#include <variant>
#include <vector>

namespace hora::test {

using AnyHandle = std::variant<Handle, ResultHandle>;

void wait(AnyHandle& handle);

struct Family {
  std::string name;
  /// A small tensor of which the memory is `values`, the right one whoever submits it.
  std::function<AnyHandle(const Context&, std::vector<float>& values, const std::string& name,
                          ProcessSet set)>
      start;
  /// The same, waited for inside; returns when the result is right, fails the test where not.
  std::function<void(const Context&, const std::string& name, ProcessSet set)> run;
};

const std::vector<Family>& families();

}  // namespace hora::test
