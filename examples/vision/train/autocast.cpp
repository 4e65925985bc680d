#include "examples/vision/train/autocast.h"

#include <ATen/autocast_mode.h>

namespace vision {
namespace {

// LibTorch 2.4 has one function of a kind for all devices in place of one for each.
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 204
bool is_on(torch::DeviceType device) {
  return at::autocast::is_autocast_enabled(device);
}
torch::ScalarType type_of(torch::DeviceType device) {
  return at::autocast::get_autocast_dtype(device);
}
void switch_on(torch::DeviceType device, bool on) {
  at::autocast::set_autocast_enabled(device, on);
}
void set_type(torch::DeviceType device, torch::ScalarType type) {
  at::autocast::set_autocast_dtype(device, type);
}
#else
bool is_on(torch::DeviceType device) {
  return device == torch::kCUDA ? at::autocast::is_enabled() : at::autocast::is_cpu_enabled();
}
torch::ScalarType type_of(torch::DeviceType device) {
  return device == torch::kCUDA ? at::autocast::get_autocast_gpu_dtype()
                                : at::autocast::get_autocast_cpu_dtype();
}
void switch_on(torch::DeviceType device, bool on) {
  device == torch::kCUDA ? at::autocast::set_enabled(on) : at::autocast::set_cpu_enabled(on);
}
void set_type(torch::DeviceType device, torch::ScalarType type) {
  device == torch::kCUDA ? at::autocast::set_autocast_gpu_dtype(type)
                         : at::autocast::set_autocast_cpu_dtype(type);
}
#endif

}  // namespace

Autocast::Autocast(const torch::Device& device, torch::ScalarType half)
    : device_(device.type()), was_on_(is_on(device_)), type_before_(type_of(device_)) {
  // Copies of weights in another type do not serve this one.
  if (was_on_ && type_before_ != half) at::autocast::clear_cache();
  set_type(device_, half);
  switch_on(device_, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  // The weights' copies in 16 bits are of this step alone, and of this type.
  const bool outermost = at::autocast::decrement_nesting() == 0;
  if (outermost || type_of(device_) != type_before_) at::autocast::clear_cache();
  switch_on(device_, was_on_);
  set_type(device_, type_before_);
}

}  // namespace vision
