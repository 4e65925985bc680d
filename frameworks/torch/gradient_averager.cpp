#include "frameworks/torch/gradient_averager.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <exception>
#include <utility>

#include "frameworks/torch/data_type.h"

namespace hora {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<BucketLayout> assign(const std::vector<Parameter>& parameters,
                                 const GradientAverager::Options& options) {
  std::vector<GradientSize> sizes;
  for (const Parameter& parameter : parameters) {
    const DataType type = to_data_type(parameter.tensor.scalar_type()).value();
    sizes.push_back({type, static_cast<std::size_t>(parameter.tensor.numel()) * size_of(type),
                     wire_type(options.compression, type)});
  }
  return assign_buckets(sizes, options.bucket_bytes);
}

}  // namespace

GradientAverager::GradientAverager(const Context& context, std::vector<Parameter> parameters,
                                   const Options& options)
    : context_(context), op_(options.op), parameters_(std::move(parameters)) {
  slots_.resize(parameters_.size());
  const bool on_host = parameters_.empty() || parameters_.front().tensor.device().is_cpu();
  const auto make_bucket = on_host ? make_host_bucket : make_cuda_bucket;
  if (!on_host) presence_.emplace(context_, options.name + ".presence", parameters_.size());
  for (const BucketLayout& layout : assign(parameters_, options)) {
    const std::size_t bucket = buckets_.size();
    Submission submission;
    submission.name = options.name + "." + std::to_string(bucket);
    submission.missing = layout.places.size();
    for (std::size_t place = 0; place < layout.places.size(); ++place) {
      const std::size_t index = layout.places[place].gradient;
      submission.slots.push_back(index);
      slots_[index] = {bucket, place, false};
    }
    try {
      buckets_.push_back(make_bucket(context_, layout, parameters_));
    } catch (const Error& error) {
      throw Error(error.code(),
                  "bucket \"" + submission.name + "\" of " + std::to_string(layout.bytes) +
                      " bytes: " + error.what(),
                  error.rank(), submission.name);
    }
    submissions_.push_back(std::move(submission));
  }
}

GradientAverager::~GradientAverager() {
  if (std::uncaught_exceptions() == 0) return;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (submissions_[bucket].handle.valid()) buckets_[bucket]->give_up_memory();
  }
}

void GradientAverager::before_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (!slots_[index].stored) return;
  const std::string& name = parameters_[index].name;
  throw Error(ErrorCode::invalid_use,
              "backward() reached parameter '" + name +
                  "' a second time before step() or synchronize(): its gradient is being averaged. "
                  "Call step() between, or add up the losses and call backward() once",
              context_.rank(), name);
}

void GradientAverager::after_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;  // backward(create_graph) records otherwise
  if (!slots_[index].stored) store(index);
  const std::size_t bucket = slots_[index].bucket;
  if (submissions_[bucket].missing == 0) submit(bucket);
}

void GradientAverager::unscale_by(std::optional<double> factor) {
  const std::lock_guard lock(mutex_);
  unscale_ = factor;
}

bool GradientAverager::gradients_were_finite() const {
  const std::lock_guard lock(mutex_);
  std::vector<at::Tensor> flags;
  for (const auto& bucket : buckets_) {
    const at::Tensor flag = bucket->flag();
    if (flag.defined()) flags.push_back(flag);
  }
  return flags.empty() || !at::cat(flags).any().item<bool>();
}

bool GradientAverager::round_open() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

GradientAverager::Cost GradientAverager::finish() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  const auto begin = Clock::now();
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const std::size_t index : submissions_[bucket].slots) {
      if (!slots_[index].stored) store(index);
    }
    submit(bucket);
  }
  if (presence_) presence_->begin();
  std::exception_ptr failure;
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    try {
      complete(bucket);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  const Cost cost{Clock::now() - begin, context_.statistics().in_flight - in_flight_before_};
  if (!failure) {
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      const GradientBucket& bucket = *buckets_[slots_[index].bucket];
      const auto present = bucket.present_anywhere(slots_[index].place);
      bucket.publish(slots_[index].place, parameters_[index],
                     present ? *present : presence_->anywhere(index));
    }
  }
  end_round();
  if (failure) std::rethrow_exception(failure);
  return cost;
}

void GradientAverager::begin_round() {
  open_ = true;
  in_flight_before_ = context_.statistics().in_flight;
  for (const auto& bucket : buckets_) {
    bucket->begin_round(gradient_passes(bucket->wire_type(), unscale_, context_.size()));
  }
}

void GradientAverager::store(std::size_t index) {
  if (!open_) begin_round();
  Slot& slot = slots_[index];
  buckets_[slot.bucket]->store(slot.place, parameters_[index]);
  if (presence_ && !parameters_[index].tensor.grad().defined()) presence_->note_absent(index);
  slot.stored = true;
  submissions_[slot.bucket].missing -= 1;
}

void GradientAverager::submit(std::size_t bucket) {
  Submission& submission = submissions_[bucket];
  if (submission.submitted) return;
  buckets_[bucket]->pack(submission.name);
  submission.handle =
      allreduce_async(context_, buckets_[bucket]->view(), {.name = submission.name, .op = op_});
  submission.submitted = true;
}

void GradientAverager::complete(std::size_t bucket) {
  Submission& submission = submissions_[bucket];
  submission.handle.wait(buckets_[bucket]->view().stream);
  buckets_[bucket]->unpack(submission.name);
}

void GradientAverager::end_round() {
  open_ = false;
  if (presence_) presence_->end();
  for (Slot& slot : slots_) slot.stored = false;
  for (Submission& submission : submissions_) {
    submission.submitted = false;
    submission.missing = submission.slots.size();
  }
}

}  // namespace hora
