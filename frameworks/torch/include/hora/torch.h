/// hora for LibTorch: all of its headers.
#pragma once

#include <hora/hora.h>
#include <hora/torch/accuracy.h>
#include <hora/torch/average_meter.h>
#include <hora/torch/checkpoint.h>
#include <hora/torch/collectives.h>
#include <hora/torch/data_loader_sampler.h>
#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/distributed_sampler.h>
#include <hora/torch/finite_check.h>
#include <hora/torch/grad_scaler.h>
#include <hora/torch/gradient_hook.h>
#include <hora/torch/groups.h>
#include <hora/torch/learning_rate.h>
#include <hora/torch/module.h>
#include <hora/torch/objects.h>
#include <hora/torch/optim.h>
#include <hora/torch/power_sgd.h>
#include <hora/torch/safetensors.h>
#include <hora/torch/sparse.h>
#include <hora/torch/sync_batch_norm.h>
#include <hora/torch/top_k.h>
#include <torch/torch.h>
