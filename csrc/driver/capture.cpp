#include "driver/capture.hpp"

namespace gg {
namespace {

// On a thread of the driver.
void let_go(void* owner) { delete static_cast<std::shared_ptr<Retirable>*>(owner); }

}  // namespace

Capture capture_of(CUstream stream) {
  Capture capture;
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult code =
      driver().cuStreamGetCaptureInfo_v2(stream, &status, &capture.id, &capture.graph, nullptr, nullptr);
  driver().check(code, "cuStreamGetCaptureInfo_v2", "asking whether the current stream is captured");
  capture.active = status != CU_STREAM_CAPTURE_STATUS_NONE;
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) capture.graph = nullptr;
  return capture;
}

void keep_with_graph(const Capture& capture, const std::shared_ptr<Retirable>& object) {
  if (!capture.graph) return;
  const Driver& cuda = driver();
  auto owner = std::make_unique<std::shared_ptr<Retirable>>(object);
  CUuserObject held = nullptr;
  cuda.check(cuda.cuUserObjectCreate(&held, owner.get(), let_go, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
             "cuUserObjectCreate");
  static_cast<void>(owner.release());  // the user object's from here on
  const CUresult code = cuda.cuGraphRetainUserObject(capture.graph, held, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (code != CUDA_SUCCESS) cuda.cuUserObjectRelease(held, 1);
  cuda.check(code, "cuGraphRetainUserObject");
}

}  // namespace gg
