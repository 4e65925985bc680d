/// hora: data-parallel training for C++. This header needs no LibTorch; <hora/torch.h> adds it.
#pragma once

#include <hora/buffer.h>
#include <hora/build_info.h>
#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/error.h>
#include <hora/groups.h>
#include <hora/handle.h>
#include <hora/objects.h>
#include <hora/phase.h>
#include <hora/printable.h>
#include <hora/process_set.h>
#include <hora/result.h>
#include <hora/settings.h>
#include <hora/timeline.h>
#include <hora/types.h>
