#include "tests/conformance/ranks.h"

#include <thread>

namespace hora::internal::test {

void Ranks::on_each(const std::function<void(int)>& body) const {
  std::vector<std::jthread> threads;
  for (int index = 1; index < count(); ++index) {
    threads.emplace_back([&body, index] { body(index); });
  }
  body(0);
}

}  // namespace hora::internal::test
