/// Options of GradScaler; no LibTorch needed.
#pragma once

#include <hora/export.h>

namespace HORA_EXPORT hora {

/// As torch.amp's. Both factors 1: the scale stays as it is, and steps with gradients that are not
/// finite are left out all the same.
struct GradScalerOptions {
  double initial_scale = 65536.0;  ///< > 0
  double growth_factor = 2.0;      ///< >= 1: after `growth_interval` steps with finite gradients
  double backoff_factor = 0.5;     ///< within (0, 1]: after a step with a gradient that is not
  int growth_interval = 2000;      ///< steps, >= 1
  bool enabled = true;  ///< false: scale 1, nothing is checked, step() is the optimizers' own
};

}  // namespace hora
