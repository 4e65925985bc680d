/// What a guard holds.
#pragma once

#include <memory>

namespace hora {

/// Held while a copy of its token exists: guards may nest, move, end in any order, and outlive
/// it. Thread rule: one thread at a time.
class GuardToken {
 public:
  std::shared_ptr<const void> take() const { return token_; }
  bool held() const { return token_.use_count() > 1; }

 private:
  std::shared_ptr<const void> token_ = std::make_shared<char>();
};

}  // namespace hora
