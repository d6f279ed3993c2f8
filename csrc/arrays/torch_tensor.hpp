// torch tensors: read by torch's C exchange API, or by attributes where torch is older than 2.10.
#pragma once

#include "abi/dlpack/dlpack.h"
#include "arrays/tensor.hpp"

namespace gg {

// The framework of `type`, torch.Tensor or a class derived from it. `api` may be null.
std::unique_ptr<Framework> torch_framework(pybind11::handle type, const DLPackExchangeAPI* api);

}  // namespace gg
