/// Where and in which precision the network computes.
#pragma once

namespace cifar10 {

/// automatic: the rank's GPU where the job has them, else the CPU.
enum class DeviceChoice { automatic, cpu, cuda };
/// Of convolutions and matrix products, under autocast; parameters and gradients stay float32.
enum class Precision { float32, float16, bfloat16 };

}  // namespace cifar10
