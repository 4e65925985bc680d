/// hora for LibTorch: all of its headers.
#pragma once

#include <hora/hora.h>
#include <hora/torch/checkpoint.h>
#include <hora/torch/collectives.h>
#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/distributed_sampler.h>
#include <hora/torch/finite_check.h>
#include <hora/torch/grad_scaler.h>
#include <hora/torch/gradient_hook.h>
#include <hora/torch/learning_rate.h>
#include <hora/torch/metrics.h>
#include <hora/torch/optim.h>
#include <hora/torch/sync_batch_norm.h>
#include <torch/torch.h>
