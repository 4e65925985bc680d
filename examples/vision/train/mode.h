/// `--mode`: how many processes and GPUs train one model. Without LibTorch.
#pragma once

namespace vision {

enum class Mode {
  distributed,    ///< a process for each GPU, or part of the cores: hora averages the gradients
  data_parallel,  ///< one process with all GPUs of its host: torch::nn::parallel::data_parallel
  single,         ///< one process with one device
};

/// Throws std::runtime_error where this mode does not train with so many ranks: it says what to do.
void check_mode(Mode mode, int ranks);

}  // namespace vision
