/// What trainers choose from by name: values, without LibTorch.
#pragma once

namespace vision {

/// automatic: the rank's GPU where the job has them, else the CPU.
enum class DeviceChoice { automatic, cpu, cuda };

/// Of convolutions and matrix products, under autocast; parameters and gradients stay float32.
enum class Amp { off, float16, bfloat16 };

/// As in NVIDIA's Apex; in float16, or bfloat16 where the device has none. O1 and O2 scale the
/// loss.
enum class OptLevel {
  O0,  ///< float32
  O1,  ///< autocast
  O2,  ///< convolutions and linear layers in 16 bits; float32 master weights, which are updated
};

/// Where one process's work is spread to.
enum class Mode {
  single,         ///< one device
  data_parallel,  ///< torch::nn::parallel::data_parallel: one process, all GPUs it sees
  distributed,    ///< one process a GPU, or a CPU's share, under horarun
};

/// What becomes of a step whose loss or gradients hold a NaN or an infinity on any rank.
enum class NonFinite {
  raise,   ///< the training ends, on every rank, with an error that names tensor and rank
  skip,    ///< every rank leaves the step out
  ignore,  ///< nothing is checked
};

/// How the learning rate falls after the warm-up.
enum class Decay { step, cosine, constant };

/// In what form gradients travel.
enum class GradientCompression {
  none,
  float16,
  bfloat16,
  top_k,      ///< hora::TopK
  power_sgd,  ///< hora::PowerSgd
};

}  // namespace vision
