/// The memory behind a Result.
#pragma once

#include <hora/types.h>

#include <memory>
#include <vector>

#include "core/engine/runtime.h"
#include "core/plan/bound_unit.h"

namespace hora {

/// A block of my windows: warm memory, where fresh pages would cost more than the exchange.
/// Thread rule: allocate() by the thread that drives, the rest once the collective is finished.
class ResultMemory final : public ExchangeResult {
 public:
  /// `row`: all extents but the first.
  ResultMemory(std::shared_ptr<Runtime> runtime, DataType type, Shape row)
      : runtime_(std::move(runtime)), type_(type), shape_(std::move(row)) {
    shape_.insert(shape_.begin(), 0);
  }
  ~ResultMemory() override {
    if (data_) runtime_->memory().release(data_);
  }
  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;

  std::byte* allocate(std::span<const std::int64_t> rows, std::size_t bytes) override {
    rows_.assign(rows.begin(), rows.end());
    for (const std::int64_t count : rows) shape_.front() += count;
    if (bytes > 0) data_ = runtime_->memory().allocate(bytes).data;
    return data_;
  }

  std::byte* data() const { return data_; }
  DataType type() const { return type_; }
  const Shape& shape() const { return shape_; }
  const std::vector<std::int64_t>& rows() const { return rows_; }

 private:
  std::shared_ptr<Runtime> runtime_;
  DataType type_;
  Shape shape_;
  std::vector<std::int64_t> rows_;
  std::byte* data_ = nullptr;
};

}  // namespace hora
