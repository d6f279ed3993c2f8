/* Streams, events and captures of fake_cuda.c. A stream is any number that a test takes for one. Nothing runs, so an
   event is done when FAKE_CUDA_EVENT or fake_events_are_ready says so.

   Tests that load this library with ctypes tell it what a framework would do, by the functions fake_*. */

enum {
  max_streams = 256,
  stream_capture_invalidated = 901, /* CUDA_ERROR_... */
  stream_capture_merge = 902,
  stream_capture_isolation = 905,
  captured_event = 907,
};

enum event_state { never_recorded, recorded, recorded_in_capture };

struct CUevent_st {
  int number, destroyed;
  enum event_state state;
  int capture; /* that recorded it, or whose replays will */
};

static struct stream_facts {
  CUstream stream;
  int known, status, capture, context;
  unsigned long long renewals;
} streams[max_streams];

static pthread_mutex_t streams_mutex = PTHREAD_MUTEX_INITIALIZER;
static int captures_underway, events_ready = -1, event_count;

/* Events that a capture records by CU_EVENT_RECORD_EXTERNAL: recorded at each replay. */
static struct {
  CUevent event;
  int capture;
} external_records[4096];
static int external_record_count;

static struct stream_facts* facts_of(CUstream stream) {
  int i = 0;
  while (i < max_streams - 1 && streams[i].known && streams[i].stream != stream) i++;
  if (!streams[i].known) streams[i] = (struct stream_facts){.stream = stream, .known = 1, .context = -1};
  return &streams[i];
}

static void invalidate(int capture) {
  for (int i = 0; i < max_streams; i++)
    if (streams[i].status && streams[i].capture == capture) streams[i].status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

static CUresult invalidated_by(struct stream_facts* facts, CUresult code) {
  invalidate(facts->capture);
  return code;
}

/* A capture ends in error when its stream is waited for or asked. */
static CUresult refused_in_capture(CUstream stream) {
  pthread_mutex_lock(&streams_mutex);
  struct stream_facts* facts = facts_of(stream);
  const CUresult code = facts->status ? invalidated_by(facts, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : CUDA_SUCCESS;
  pthread_mutex_unlock(&streams_mutex);
  return code;
}

/* Of the events from now on this one is not made, counted from 1. */
static int failing_event;
void fake_fail_event(int number) { failing_event = number; }

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  FAULT_POINT();
  if (failing_event > 0 && --failing_event == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *event = calloc(1, sizeof **event);
  (*event)->number = __atomic_add_fetch(&event_count, 1, __ATOMIC_SEQ_CST);
  record("{\"call\": \"cuEventCreate\", \"event\": %d, \"flags\": %u}", (*event)->number, flags);
  return CUDA_SUCCESS;
}

/* The memory stays, so that a later use of the event is seen. */
CUresult cuEventDestroy_v2(CUevent event) {
  FAULT_POINT();
  if (!event || event->destroyed) return CUDA_ERROR_INVALID_HANDLE;
  record("{\"call\": \"cuEventDestroy\", \"event\": %d}", event->number);
  event->destroyed = 1;
  return CUDA_SUCCESS;
}

static CUresult record_event(CUevent event, CUstream stream, unsigned flags) {
  if (!event || event->destroyed) return CUDA_ERROR_INVALID_HANDLE;
  struct stream_facts* facts = facts_of(stream);
  if (facts->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) return stream_capture_invalidated;
  if (!facts->status && flags) return CUDA_ERROR_INVALID_VALUE; /* external: for captures alone */
  event->capture = facts->capture;
  if (facts->status && flags) {
    if (external_record_count == (int)(sizeof external_records / sizeof *external_records))
      return CUDA_ERROR_OUT_OF_MEMORY;
    external_records[external_record_count].event = event;
    external_records[external_record_count++].capture = facts->capture;
  } else {
    event->state = facts->status ? recorded_in_capture : recorded;
  }
  return CUDA_SUCCESS;
}

static CUresult locked_record(CUevent event, CUstream stream, unsigned flags) {
  pthread_mutex_lock(&streams_mutex);
  const CUresult code = record_event(event, stream, flags);
  if (code == CUDA_SUCCESS)
    record("{\"call\": \"cuEventRecord\", \"event\": %d, \"stream\": %zu, \"flags\": %u}", event->number,
           (size_t)stream, flags);
  pthread_mutex_unlock(&streams_mutex);
  return code;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  FAULT_POINT();
  return locked_record(event, stream, flags);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  FAULT_POINT();
  return locked_record(event, stream, 0);
}

/* A thread whose mode is not relaxed may not ask while a capture is underway: that ends the capture. */
static CUresult may_ask(CUevent event) {
  if (!event || event->destroyed) return CUDA_ERROR_INVALID_HANDLE;
  if (event->state == recorded_in_capture) return captured_event;
  if (!captures_underway || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  for (int i = 0; i < max_streams; i++)
    if (streams[i].status) streams[i].status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static int is_pending(CUevent event) {
  const char* text = getenv("FAKE_CUDA_EVENT");
  const int ready = events_ready >= 0 ? events_ready : !text || strcmp(text, "pending");
  return event->state == recorded && !ready;
}

/* An event that was never recorded is done, as the driver has it. */
CUresult cuEventQuery(CUevent event) {
  FAULT_POINT();
  pthread_mutex_lock(&streams_mutex);
  CUresult code = may_ask(event);
  if (code == CUDA_SUCCESS && is_pending(event)) code = CUDA_ERROR_NOT_READY;
  record("{\"call\": \"cuEventQuery\", \"event\": %d, \"answer\": %d}", event ? event->number : 0, code);
  pthread_mutex_unlock(&streams_mutex);
  return code;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  FAULT_POINT();
  pthread_mutex_lock(&streams_mutex);
  CUresult code = may_ask(start);
  if (code == CUDA_SUCCESS) code = may_ask(end);
  if (code == CUDA_SUCCESS && (start->state == never_recorded || end->state == never_recorded))
    code = CUDA_ERROR_INVALID_HANDLE;
  if (code == CUDA_SUCCESS && (is_pending(start) || is_pending(end))) code = CUDA_ERROR_NOT_READY;
  record("{\"call\": \"cuEventElapsedTime\", \"start\": %d, \"end\": %d, \"answer\": %d}", start ? start->number : 0,
         end ? end->number : 0, code);
  pthread_mutex_unlock(&streams_mutex);
  if (code == CUDA_SUCCESS) *milliseconds = 0;
  return code;
}

static int is_underway(int capture) {
  for (int i = 0; i < max_streams; i++)
    if (streams[i].status && streams[i].capture == capture) return 1;
  return 0;
}

/* A stream that waits for an event of a capture joins it; a capture takes events of others as external ones alone. */
static CUresult wait_for(CUstream stream, CUevent event, unsigned flags) {
  if (!event || event->destroyed) return CUDA_ERROR_INVALID_HANDLE;
  struct stream_facts* facts = facts_of(stream);
  if (facts->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) return stream_capture_invalidated;
  if (flags) return facts->status ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  const int captured = event->state == recorded_in_capture;
  if (captured && !is_underway(event->capture)) return captured_event;
  if (facts->status && !captured) return invalidated_by(facts, stream_capture_isolation);
  if (facts->status && facts->capture != event->capture) return invalidated_by(facts, stream_capture_merge);
  if (captured) facts->status = CU_STREAM_CAPTURE_STATUS_ACTIVE, facts->capture = event->capture;
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  FAULT_POINT();
  pthread_mutex_lock(&streams_mutex);
  const CUresult code = wait_for(stream, event, flags);
  record("{\"call\": \"cuStreamWaitEvent\", \"stream\": %zu, \"event\": %d, \"flags\": %u, \"answer\": %d}",
         (size_t)stream, event ? event->number : 0, flags, code);
  pthread_mutex_unlock(&streams_mutex);
  return code;
}

/* A capture's graph is known by the capture's number. */
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int* status, uint64_t* id, CUgraph* graph,
                                   const CUgraphNode** nodes, size_t* count) {
  FAULT_POINT();
  (void)nodes, (void)count;
  pthread_mutex_lock(&streams_mutex);
  const struct stream_facts* facts = facts_of(stream);
  *status = facts->status;
  if (facts->status && id) *id = (uint64_t)facts->capture;
  if (facts->status && graph) *graph = (CUgraph)(size_t)facts->capture;
  record("{\"call\": \"cuStreamGetCaptureInfo\", \"stream\": %zu, \"status\": %d, \"id\": %d}", (size_t)stream,
         facts->status, facts->status ? facts->capture : 0);
  pthread_mutex_unlock(&streams_mutex);
  return CUDA_SUCCESS;
}

struct CUuserObject_st {
  void* user_data;
  CUhostFn destroy;
  int graph; /* that owns it, or 0 */
  CUuserObject next;
};
static CUuserObject user_objects;

CUresult cuUserObjectCreate(CUuserObject* object, void* user_data, CUhostFn destroy, unsigned count, unsigned flags) {
  FAULT_POINT();
  if (count != 1 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  *object = calloc(1, sizeof **object);
  (*object)->user_data = user_data, (*object)->destroy = destroy;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  FAULT_POINT();
  if (count != 1 || object->graph) return CUDA_ERROR_INVALID_VALUE;
  object->destroy(object->user_data);
  free(object);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  FAULT_POINT();
  if (!graph || object->graph || count != 1 || flags != CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&streams_mutex);
  object->graph = (int)(size_t)graph;
  object->next = user_objects, user_objects = object;
  record("{\"call\": \"cuGraphRetainUserObject\", \"graph\": %d}", object->graph);
  pthread_mutex_unlock(&streams_mutex);
  return CUDA_SUCCESS;
}

/* Ends the graph of a capture, and calls what its user objects ask for. */
void fake_destroy_graph(int id) {
  pthread_mutex_lock(&streams_mutex);
  CUuserObject found = NULL;
  for (CUuserObject *place = &user_objects, object; (object = *place);) {
    if (object->graph != id) place = &object->next;
    else *place = object->next, object->next = found, found = object;
  }
  record("{\"call\": \"fake_destroy_graph\", \"id\": %d}", id);
  pthread_mutex_unlock(&streams_mutex);
  for (CUuserObject next; found; found = next) next = found->next, found->destroy(found->user_data), free(found);
}

/* A capture ends in error when its stream is asked for its id. */
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  FAULT_POINT();
  const CUresult refused = refused_in_capture(stream);
  if (refused != CUDA_SUCCESS) return refused;
  pthread_mutex_lock(&streams_mutex);
  *id = (size_t)stream + (facts_of(stream)->renewals << 48);
  pthread_mutex_unlock(&streams_mutex);
  record("{\"call\": \"cuStreamGetId\", \"stream\": %zu, \"id\": %llu}", (size_t)stream, *id);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  FAULT_POINT();
  pthread_mutex_lock(&streams_mutex);
  const int number = facts_of(stream)->context;
  pthread_mutex_unlock(&streams_mutex);
  *context = number < 0 ? current : number < max_devices ? &contexts[number] : &foreign_contexts[number - max_devices];
  record("{\"call\": \"cuStreamGetCtx\", \"stream\": %zu, \"device\": %d}", (size_t)stream,
         *context ? (*context)->device : -1);
  return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* `id` is the capture's own number, never 0, and the graph's after it. */
void fake_begin_capture(CUstream stream, int id) {
  pthread_mutex_lock(&streams_mutex);
  struct stream_facts* facts = facts_of(stream);
  facts->status = CU_STREAM_CAPTURE_STATUS_ACTIVE, facts->capture = id;
  captures_underway++;
  record("{\"call\": \"fake_begin_capture\", \"stream\": %zu, \"id\": %d}", (size_t)stream, id);
  pthread_mutex_unlock(&streams_mutex);
}

/* Ends the capture on this stream and on all that joined it. Returns 0, or the driver's code of a broken capture. */
CUresult fake_end_capture(CUstream stream) {
  pthread_mutex_lock(&streams_mutex);
  const int id = facts_of(stream)->capture;
  const CUresult code =
      facts_of(stream)->status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CUDA_SUCCESS : stream_capture_invalidated;
  for (int i = 0; i < max_streams; i++)
    if (streams[i].status && streams[i].capture == id) streams[i].status = CU_STREAM_CAPTURE_STATUS_NONE;
  captures_underway--;
  record("{\"call\": \"fake_end_capture\", \"stream\": %zu, \"id\": %d, \"answer\": %d}", (size_t)stream, id, code);
  pthread_mutex_unlock(&streams_mutex);
  return code;
}

/* Launches the graph of a capture: its external records are made now. */
void fake_replay(CUstream stream, int id) {
  pthread_mutex_lock(&streams_mutex);
  for (int i = 0; i < external_record_count; i++)
    if (external_records[i].capture == id) external_records[i].event->state = recorded;
  record("{\"call\": \"fake_replay\", \"stream\": %zu, \"id\": %d}", (size_t)stream, id);
  pthread_mutex_unlock(&streams_mutex);
}

/* From now on recorded events are done (1), are not (0), or are as FAKE_CUDA_EVENT says (-1). */
void fake_events_are_ready(int ready) {
  pthread_mutex_lock(&streams_mutex);
  events_ready = ready;
  pthread_mutex_unlock(&streams_mutex);
}

/* Another stream that has the handle of one that was destroyed. */
void fake_renew_stream(CUstream stream) {
  pthread_mutex_lock(&streams_mutex);
  facts_of(stream)->renewals++;
  pthread_mutex_unlock(&streams_mutex);
}

/* The context that a stream belongs to: a device's own, or with max_devices added a foreign one of that device. */
void fake_set_stream_context(CUstream stream, int context) {
  pthread_mutex_lock(&streams_mutex);
  facts_of(stream)->context = context;
  pthread_mutex_unlock(&streams_mutex);
}

/* A line of the caller's own among those of the calls. */
void fake_note(const char* line) { record("%s", line); }
