/// hora for LibTorch: all of its headers.
#pragma once

#include <hora/distributed_optimizer.h>
#include <hora/grad_scaler.h>
#include <hora/gradient_hook.h>
#include <hora/hora.h>
#include <hora/power_sgd.h>
#include <hora/sync_batch_norm.h>
#include <hora/top_k.h>
#include <hora/torch/accuracy.h>
#include <hora/torch/average_meter.h>
#include <hora/torch/checkpoint.h>
#include <hora/torch/data_loader_sampler.h>
#include <hora/torch/distributed_sampler.h>
#include <hora/torch/finite_check.h>
#include <hora/torch/learning_rate.h>
#include <hora/torch/optim.h>
#include <hora/torch/safetensors.h>
#include <hora/torch_collectives.h>
#include <hora/torch_groups.h>
#include <hora/torch_module.h>
#include <hora/torch_objects.h>
#include <hora/torch_sparse.h>
#include <torch/torch.h>
