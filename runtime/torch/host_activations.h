// SPDX-License-Identifier: Apache-2.0
// HostCopies, HostPass: what segments of a stage keep in the memory of the host between the
// passes of a micro-batch.
//
// Tensors go there by the memory that they share, each once. On a CUDA device, copies have a stream
// of their own. On a CPU, they take turns with what is computed: what leaves does so at the moment
// when a CUDA device would wait for it, and what comes back at once, so that as much lives at a
// time.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// The copies between a device and the memory of its host, and what of that memory is free. It
/// outlives the segments that use it.
class HostCopies {
 public:
  explicit HostCopies(at::Device device);
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  at::Device device() const { return device_; }
  /// Returns at least `bytes` bytes of the host's memory, pinned if copies there run beside
  /// kernels. They are not counted among what lives on a device, also where that is a CPU.
  at::Tensor take(std::int64_t bytes);
  /// Gives such memory back, of which all copies have begun.
  void give_back(at::Tensor memory);

  /// A moment in the work of the device or of its copies.
  struct Moment;
  using MomentPtr = std::shared_ptr<Moment>;
  /// Begins copies `from` to `to`, when the work that the device has been given is done. Returns
  /// the moment when they have ended; nullptr: they have.
  MomentPtr copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to);
  /// Lets what the device is given from now on wait for `moment`, which may be nullptr.
  void await(const MomentPtr& moment);

 private:
  struct Stream;
  at::Device device_;
  std::unique_ptr<Stream> stream_;                // nullptr: copies take turns
  std::multimap<std::int64_t, at::Tensor> free_;  // by bytes
};

/// What segments keep for one micro-batch. Each is given tensors while its forward pass runs. Then
/// it begins to copy them, and lets go of the device's memory when they have arrived. For the
/// backward pass, they come back in the same order. What several segments keep goes with the last
/// of them.
class HostPass {
 public:
  explicit HostPass(HostCopies& copies) : copies_(copies) {}
  ~HostPass();
  HostPass(const HostPass&) = delete;
  HostPass& operator=(const HostPass&) = delete;

  /// A tensor of it, wherever its content lies.
  class Kept {
   public:
    /// Returns the tensor. Needs: it has not gone, or has come back.
    at::Tensor tensor() const;

   private:
    friend class HostPass;
    struct Memory;
    std::shared_ptr<Memory> memory_;
    at::TensorOptions options_;
    std::vector<std::int64_t> sizes_, strides_;
    std::int64_t offset_ = 0;
  };

  static constexpr std::size_t kStays = static_cast<std::size_t>(-1);
  /// Begins a segment: what is kept from now on goes with it.
  void begin(std::size_t segment);
  Kept keep(const at::Tensor& tensor);
  /// Says that what holds `tensor` goes with another segment, or stays on the device (kStays).
  void place(const at::Tensor& tensor, std::size_t segment);

  void begin_out(std::size_t segment);
  void end_out(std::size_t segment);
  /// Forgets what stays.
  void end_forward();
  void begin_in(std::size_t segment);
  /// Forgets what has come: those who have a `Kept` have it now.
  void end_in(std::size_t segment);

 private:
  using Memory = Kept::Memory;
  using Memories = std::vector<std::shared_ptr<Memory>>;
  enum class Way : std::uint8_t { kOut, kIn };
  void begin_copy(const Memories& memories, Way way);

  HostCopies& copies_;
  std::size_t segment_ = 0;  // that is being computed
  Memories kept_;            // that no segment has begun to take out, as they were given
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<Memory>> known_;  // on the device
  /// What was said of tensors while this segment is computed. The address of what is gone meanwhile
  /// serves nothing else.
  struct Place {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::size_t segment = 0;
  };
  std::unordered_map<const c10::StorageImpl*, Place> places_;
  std::map<std::size_t, Memories> of_;  // by segment
  HostCopies::MomentPtr moment_;        // of the last copies
};

/// While it exists, what autograd saves on this thread for backward passes is kept by a pass.
class SavesToHost {
 public:
  explicit SavesToHost(HostPass& pass);
  ~SavesToHost();
  SavesToHost(const SavesToHost&) = delete;
  SavesToHost& operator=(const SavesToHost&) = delete;

  /// Lets autograd ask where it saves. Returns whether it can: some other program may have changed
  /// autograd's engine already.
  static bool prepare();

 private:
  HostPass* const before_;
};

}  // namespace agpcs
