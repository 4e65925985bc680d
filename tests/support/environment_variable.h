/// A variable of this process's environment, for as long as a test needs it.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace hora::internal::test {

/// Sets the variable, or unsets it, while it lives; then what was before is back.
class EnvironmentVariable {
 public:
  explicit EnvironmentVariable(std::string name) : EnvironmentVariable(std::move(name), "") {
    ::unsetenv(name_.c_str());
  }
  EnvironmentVariable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;
  ~EnvironmentVariable() {
    if (before_) {
      ::setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }

 private:
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace hora::internal::test
