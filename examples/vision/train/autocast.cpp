#include "examples/vision/train/autocast.h"

#include <ATen/autocast_mode.h>

namespace vision {
namespace {

// LibTorch 2.4 has one pair of functions for all devices in place of one for each.
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 204
void switch_on(torch::DeviceType device, bool on) {
  at::autocast::set_autocast_enabled(device, on);
}
void set_type(torch::DeviceType device, torch::ScalarType type) {
  at::autocast::set_autocast_dtype(device, type);
}
#else
void switch_on(torch::DeviceType device, bool on) {
  device == torch::kCUDA ? at::autocast::set_enabled(on) : at::autocast::set_cpu_enabled(on);
}
void set_type(torch::DeviceType device, torch::ScalarType type) {
  device == torch::kCUDA ? at::autocast::set_autocast_gpu_dtype(type)
                         : at::autocast::set_autocast_cpu_dtype(type);
}
#endif

}  // namespace

Autocast::Autocast(const torch::Device& device, Amp amp)
    : device_(device.type()), on_(amp != Amp::off) {
  if (!on_) return;
  set_type(device_, amp == Amp::float16 ? torch::kHalf : torch::kBFloat16);
  switch_on(device_, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!on_) return;
  // The weights' lower-precision copies are of this step alone.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  switch_on(device_, false);
}

}  // namespace vision
