// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/sum.h"
#include "tests/runtime/nccl/emulated_gpu.h"

#include <agpcs/types.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace {

// What the ranks of a communicator share.
struct Clique {
  struct Part {
    void* data = nullptr;
    bool done = false;
    bool in_graph = ::in_graph();
  };
  struct Collective {
    std::vector<Part*> parts;
    std::size_t arrived = 0;
    bool lost = false;  // a member aborted: never ends
  };
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0;
  std::map<std::pair<int, int>, std::deque<Part*>> sends;  // by sender, receiver
  std::map<std::size_t, Collective> collectives;           // by number
};

std::mutex cliques_mutex;
std::map<int, std::shared_ptr<Clique>> cliques;  // NOLINT
int next_clique = 0;
std::atomic<int> communicators{0};

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  std::size_t collectives = 0;  // carried out; as `aborted` guarded by the clique's mutex
  bool aborted = false, started = false;
  int captured = 0;                 // operations that graphs hold; guarded likewise
  std::function<void()> postponed;  // put on its stream once asked about
  std::vector<cudaStream_t> streams;
};

namespace {

using Lock = std::unique_lock<std::mutex>;

// Keeps `comm` until no graph has the operation any more.
std::shared_ptr<void> captured_operation(ncclComm_t comm) {
  const std::lock_guard lock(comm->clique->mutex);
  ++comm->captured;
  return {comm, [clique = comm->clique](void* held) {
            const std::lock_guard let_go(clique->mutex);
            --static_cast<ncclComm_t>(held)->captured;
            clique->changed.notify_all();
          }};
}

// Runs `work` on `stream`, the communicator's first only when it is asked about.
ncclResult_t launch(ncclComm_t comm, cudaStream_t stream, std::function<void()> work) {
  comm->streams.push_back(stream);
  if (stream->captured().graph) {
    work = [held = captured_operation(comm), work = std::move(work)] { work(); };
  }
  if (comm->started) {
    stream->push(std::move(work));
    return ncclSuccess;
  }
  comm->started = true;
  comm->postponed = [stream, work = std::move(work)] { stream->push(work); };
  return ncclInProgress;
}

void post_part(ncclComm_t comm, int peer, Clique::Part& part) {
  const std::lock_guard lock(comm->clique->mutex);
  comm->clique->sends[{comm->rank, peer}].push_back(&part);
  comm->clique->changed.notify_all();
}

void await_part(ncclComm_t comm, int peer, Clique::Part& part) {
  Clique& clique = *comm->clique;
  Lock lock(clique.mutex);
  clique.changed.wait(lock, [&] { return part.done || comm->aborted; });
  if (!part.done) std::erase(clique.sends[{comm->rank, peer}], &part);
}

void recv_part(ncclComm_t comm, int peer, void* data, std::size_t bytes) {
  Clique& clique = *comm->clique;
  Lock lock(clique.mutex);
  auto& queue = clique.sends[{peer, comm->rank}];
  const auto meets = [&] { return !queue.empty() && queue.front()->in_graph == in_graph(); };
  clique.changed.wait(lock, [&] { return meets() || comm->aborted; });
  if (comm->aborted) return;
  std::memcpy(data, queue.front()->data, bytes);
  queue.front()->done = true;
  queue.pop_front();
  clique.changed.notify_all();
}

// Sends and receives of one group, all under way at the same time.
struct Message {
  bool sends = false;
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

void exchange(ncclComm_t comm, const std::vector<Message>& messages) {
  std::deque<Clique::Part> parts;
  for (const Message& m : messages) {
    if (m.sends) post_part(comm, m.peer, parts.emplace_back(Clique::Part{m.data}));
  }
  for (const Message& m : messages) {
    if (!m.sends) recv_part(comm, m.peer, m.data, m.bytes);
  }
  auto part = parts.begin();
  for (const Message& m : messages) {
    if (m.sends) await_part(comm, m.peer, *part++);
  }
}

// The thread's open group; the transport groups messages, or collectives, of one communicator and
// stream.
struct Group {
  std::vector<Message> messages;
  std::vector<std::function<void()>> collectives;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};
thread_local bool grouping = false;
thread_local Group group;  // NOLINT

bool joins_group(ncclComm_t comm, cudaStream_t stream) {
  if (group.comm != nullptr && (group.comm != comm || group.stream != stream)) return false;
  group.comm = comm;
  group.stream = stream;
  return true;
}

ncclResult_t message(const Message& one, ncclDataType_t type, ncclComm_t comm,
                     cudaStream_t stream) {
  if (type != ncclChar || !on_gpu(one.data, one.bytes)) return ncclInvalidArgument;
  if (!grouping) return launch(comm, stream, [=] { exchange(comm, {one}); });
  if (!joins_group(comm, stream)) return ncclInvalidUsage;
  group.messages.push_back(one);
  return ncclSuccess;
}

ncclResult_t launch_collective(ncclComm_t comm, cudaStream_t stream, std::function<void()> work) {
  if (!grouping) return launch(comm, stream, std::move(work));
  if (!joins_group(comm, stream)) return ncclInvalidUsage;
  group.collectives.push_back(std::move(work));
  return ncclSuccess;
}

// `meet` is called once, with all members' data by rank, when the last has come.
void collective(ncclComm_t comm, void* data,
                const std::function<void(const std::vector<Clique::Part*>&)>& meet) {
  Clique& clique = *comm->clique;
  Lock lock(clique.mutex);
  if (comm->aborted) return;
  const std::size_t number = comm->collectives++;
  Clique::Part part{data};
  Clique::Collective& here = clique.collectives[number];
  here.parts.resize(static_cast<std::size_t>(clique.size));
  here.parts[static_cast<std::size_t>(comm->rank)] = &part;
  for (const Clique::Part* each : here.parts) {
    if (each != nullptr && each->in_graph != part.in_graph) here.lost = true;
  }
  if (++here.arrived == here.parts.size() && !here.lost && !comm->aborted) {
    meet(here.parts);
    for (Clique::Part* each : here.parts) each->done = true;
    clique.collectives.erase(number);
    clique.changed.notify_all();
    return;
  }
  clique.changed.wait(lock, [&] { return part.done || comm->aborted; });
  if (part.done) return;
  here.lost = true;
  here.parts[static_cast<std::size_t>(comm->rank)] = nullptr;
}

agpcs::DType type_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return agpcs::DType::kFp32;
    case ncclFloat64:
      return agpcs::DType::kFp64;
    case ncclFloat16:
      return agpcs::DType::kFp16;
    case ncclBfloat16:
      return agpcs::DType::kBf16;
    case ncclInt64:
      return agpcs::DType::kInt64;
    case ncclInt8:
      return agpcs::DType::kInt8;
    default:
      return agpcs::DType::kInt32;
  }
}

// The sum ends where `root` is, or everywhere where it is negative.
ncclResult_t sum(void* data, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                 cudaStream_t stream) {
  const agpcs::DType dtype = type_of(type);
  const std::size_t bytes = count * agpcs::size_of(dtype);
  if (!on_gpu(data, bytes)) return ncclInvalidArgument;
  return launch_collective(comm, stream, [=] {
    collective(comm, data, [=](const std::vector<Clique::Part*>& parts) {
      std::vector<char> total(static_cast<const char*>(parts[0]->data),
                              static_cast<const char*>(parts[0]->data) + bytes);
      for (std::size_t i = 1; i < parts.size(); ++i) {
        agpcs::add_into(total.data(), parts[i]->data, count, dtype);
      }
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (root >= 0 && static_cast<std::size_t>(root) != i) continue;
        std::memcpy(parts[i]->data, total.data(), bytes);
      }
    });
  });
}

// Waits, as NCCL does, until no graph has operations of `comm`.
void await_graphs(ncclComm_t comm, Lock& lock) {
  comm->clique->changed.wait(lock, [&] { return comm->captured == 0; });
}

// Ends the operations of `comm` that wait for others, and waits until its streams have let go.
void end_operations(ncclComm_t comm) {
  {
    Lock lock(comm->clique->mutex);
    comm->aborted = true;
    comm->clique->changed.notify_all();
    await_graphs(comm, lock);
  }
  for (cudaStream_t stream : comm->streams) stream->synchronize();
}

}  // namespace

int open_communicators() { return communicators; }

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclInvalidArgument ? "invalid argument" : "an emulated error";
}
const char* ncclGetLastError(ncclComm_t /*comm*/) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(cliques_mutex);
  const int number = next_clique++;
  cliques[number] = std::make_shared<Clique>();
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  int number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  *comm = new ncclComm;
  ++communicators;
  const std::lock_guard lock(cliques_mutex);
  (*comm)->clique = cliques.at(number);
  (*comm)->rank = rank;
  const std::lock_guard held((*comm)->clique->mutex);
  (*comm)->clique->size = size;
  ++(*comm)->clique->joined;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (comm->postponed) std::exchange(comm->postponed, nullptr)();
  const std::lock_guard lock(comm->clique->mutex);
  *state = comm->clique->joined < comm->clique->size ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t /*comm*/) { return ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  {
    const std::shared_ptr<Clique> clique = comm->clique;
    Lock lock(clique->mutex);
    await_graphs(comm, lock);
  }
  delete comm;
  --communicators;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  end_operations(comm);
  delete comm;
  --communicators;
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return message({true, peer, const_cast<void*>(data), count}, type, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return message({false, peer, data, count}, type, comm, stream);
}
ncclResult_t ncclGroupStart() {
  if (std::exchange(grouping, true)) return ncclInvalidUsage;
  group = {};
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (!std::exchange(grouping, false)) return ncclInvalidUsage;
  if (group.comm == nullptr) return ncclSuccess;
  return launch(group.comm, group.stream, [done = group] {
    if (!done.messages.empty()) exchange(done.comm, done.messages);
    for (const auto& collective : done.collectives) collective();
  });
}
ncclResult_t ncclAllReduce(const void* /*from*/, void* data, size_t count, ncclDataType_t type,
                           ncclRedOp_t /*op*/, ncclComm_t comm, cudaStream_t stream) {
  return sum(data, count, type, -1, comm, stream);
}
ncclResult_t ncclReduce(const void* /*from*/, void* data, size_t count, ncclDataType_t type,
                        ncclRedOp_t /*op*/, int root, ncclComm_t comm, cudaStream_t stream) {
  return sum(data, count, type, root, comm, stream);
}
ncclResult_t ncclBroadcast(const void* /*from*/, void* data, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * agpcs::size_of(type_of(type));
  if (!on_gpu(data, bytes)) return ncclInvalidArgument;
  return launch_collective(comm, stream, [=] {
    collective(comm, data, [=](const std::vector<Clique::Part*>& parts) {
      const void* source = parts[static_cast<std::size_t>(root)]->data;
      for (const Clique::Part* part : parts) {
        if (part->data != source) std::memcpy(part->data, source, bytes);
      }
    });
  });
}
// In place, as everywhere here: what a rank gets lies where its part of what it gives lies.
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t /*op*/, ncclComm_t comm, cudaStream_t stream) {
  const agpcs::DType dtype = type_of(type);
  const std::size_t bytes = count * agpcs::size_of(dtype);
  const auto size = static_cast<std::size_t>(comm->clique->size);
  char* data = static_cast<char*>(const_cast<void*>(from));
  if (to != data + static_cast<std::size_t>(comm->rank) * bytes || !on_gpu(data, size * bytes)) {
    return ncclInvalidArgument;
  }
  return launch_collective(comm, stream, [=] {
    collective(comm, data, [=](const std::vector<Clique::Part*>& parts) {
      for (std::size_t owner = 0; owner < size; ++owner) {
        const auto part_of = [&](std::size_t rank) {
          return static_cast<char*>(parts[rank]->data) + owner * bytes;
        };
        for (std::size_t rank = 0; rank < size; ++rank) {
          if (rank != owner) agpcs::add_into(part_of(owner), part_of(rank), count, dtype);
        }
      }
    });
  });
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * agpcs::size_of(type_of(type));
  const auto size = static_cast<std::size_t>(comm->clique->size);
  if (from != static_cast<char*>(to) + static_cast<std::size_t>(comm->rank) * bytes ||
      !on_gpu(to, size * bytes)) {
    return ncclInvalidArgument;
  }
  return launch_collective(comm, stream, [=] {
    collective(comm, to, [=](const std::vector<Clique::Part*>& parts) {
      for (std::size_t owner = 0; owner < size; ++owner) {
        for (const Clique::Part* part : parts) {
          if (part == parts[owner]) continue;
          std::memcpy(static_cast<char*>(part->data) + owner * bytes,
                      static_cast<const char*>(parts[owner]->data) + owner * bytes, bytes);
        }
      }
    });
  });
}

}  // extern "C"
