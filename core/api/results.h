/// The memory behind a Result.
#pragma once

#include <hora/types.h>

#include <exception>
#include <optional>
#include <utility>

#include "core/engine/engine.h"
#include "core/engine/interfaces.h"
#include "core/plan/plan.h"

namespace hora::internal {

/// The properties of a Result that are known before the exchange.
struct ResultForm {
  TensorView view = {};   ///< without data, of no rows; the stream: the output's, else the input's
  std::string name = {};  ///< the tensor's, for errors of the output
  std::optional<std::span<std::byte>> output = {};  ///< the caller's memory for the result
};

/// Thread rule: allocate() by the thread that makes progress, the rest after the end.
class ResultMemory : public ExchangeResult {
 public:
  explicit ResultMemory(ResultForm form) : form_(std::move(form)) {}
  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;

  std::byte* allocate(std::span<const std::int64_t> rows, std::size_t bytes) override {
    rows_.assign(rows.begin(), rows.end());
    for (const std::int64_t count : rows) form_.view.shape.front() += count;
    bytes_ = bytes;
    if (bytes > 0) form_.view.data = place(bytes);
    return data();
  }
  /// By the thread that has waited: the form's stream sees the result from now on, in the form's
  /// output where there is one. May block. Throws Error(invalid_argument) where that does not fit.
  void collect();

  /// Overrides the stream. Call before collect().
  void set_stream(void* stream) { form_.view.stream = stream; }

  const TensorView& view() const { return form_.view; }
  std::byte* data() const { return static_cast<std::byte*>(form_.view.data); }
  const std::vector<std::int64_t>& rows() const { return rows_; }

 protected:
  virtual std::byte* place(std::size_t bytes) = 0;
  /// By collect(): data() is where the caller finds the result.
  virtual void take() = 0;
  bool fits_output(std::size_t bytes) const {
    return form_.output && form_.output->size() == bytes;
  }
  bool collected() const { return collected_; }
  /// The program has had the memory, and an exception may leave a collective in flight: no reuse.
  bool may_be_in_flight() const { return collected_ && std::uncaught_exceptions() > 0; }

  ResultForm form_;
  std::vector<std::int64_t> rows_;
  std::size_t bytes_ = 0;

 private:
  bool collected_ = false;
};

/// A block of this rank's windows: mapped pages, as faults would cost more than the exchange. An
/// output in the windows takes its place; to another one, or to the device, the block is copied.
class HostResult final : public ResultMemory {
 public:
  /// Both outlive it. `heap`: of a tensor on a device whose exchange runs in host memory, else
  /// null.
  HostResult(NodeMemory& memory, ResultForm form, DeviceHeap* heap = nullptr);
  ~HostResult() override {
    if (expected_) memory_.release(expected_);
    if (may_be_in_flight()) return;
    if (block_) memory_.release(block_);
    if (on_device_) heap_->release(on_device_, form_.view.stream);
  }
  std::byte* expect(std::size_t bytes) override;

 private:
  std::byte* place(std::size_t bytes) override;
  /// Throws Error(out_of_memory) and Error(transport).
  void take() override;

  NodeMemory& memory_;
  DeviceHeap* const heap_;
  bool output_is_shared_ = false;    ///< it lies in this rank's windows
  bool output_is_expected_ = false;  ///< then peers may read or write there
  std::byte* expected_ = nullptr;
  std::byte* block_ = nullptr;      ///< until it is copied
  std::byte* on_device_ = nullptr;  ///< what it is copied to, where there is no output
};

/// Written on the device's own stream. Freed in the order of the form's stream, or of the device's
/// own as long as no thread has waited: then nothing reads it, and that stream may be destroyed.
class DeviceResult final : public ResultMemory {
 public:
  /// `heap` outlives it.
  DeviceResult(DeviceHeap& heap, ResultForm form) : ResultMemory(std::move(form)), heap_(heap) {}
  ~DeviceResult() override {
    if (may_be_in_flight()) return;
    heap_.release(block_, collected() ? std::optional(form_.view.stream) : std::nullopt);
  }

 private:
  std::byte* place(std::size_t bytes) override {
    if (fits_output(bytes)) return form_.output->data();
    return block_ = heap_.allocate(bytes, std::nullopt);
  }
  void take() override {}  // it is there, in the order of the stream

  DeviceHeap& heap_;
  std::byte* block_ = nullptr;
};

}  // namespace hora::internal
