// SPDX-License-Identifier: Apache-2.0
// A small profile for tests: one device, two operators, one path, one all-reduce.
#pragma once

#include "ir/cluster/profile.h"

namespace agpcs {

inline DeviceProfile small_device() {
  MeasuredOperator matmul;
  matmul.signature = "MatMul(fp32[n,4]', fp32[4,8]*) -> fp32[n,8]";
  matmul.op_class = OpClass::kMatmul;
  matmul.points = {{1, {64, 128, 192, 384}, {1e-6, 0.1}, {2e-6, 0.2}},
                   {4, {256, 512, 384, 768}, {3e-6, 0.1}, {6e-6, 0.2}}};
  MeasuredOperator relu;  // no gradient is needed
  relu.signature = "Relu(fp32[n,8]) -> fp32[n,8]";
  relu.points = {{1, {8, 0, 64, 0}, {0.5e-6, 0}, {}}};

  DeviceProfile device;
  device.name = "cpu";
  device.hardware = {{"processor", "Intel(R) Xeon(R)"}, {"cores", "2"}};
  device.software = {{"agpcs", "0.1.0"}};
  device.models = {"small_cnn"};
  device.operators = {matmul, relu};
  device.updates = {{"sgd", 1200, 8, {12e-6, 0.03}, {4e-6, 0.02}}};
  device.message_overhead = 12e-6;
  device.overlap = {0.3e-9, 0.8};
  return device;
}

inline Profile small_profile() {
  Profile profile;
  profile.file = "lab.yaml";
  profile.devices = {small_device()};
  profile.paths = {{"a/0",
                    "b/0",
                    {"a/0 out", "a nic out", "b nic in", "b/0 in"},
                    {{1024, {80e-6, 0.1}}, {1 << 20, {900e-6, 0.05}}}}};
  profile.collectives = {{AllReduce::kRing, {"a/0", "b/0"}, {{4096, {200e-6, 0.1}}}}};
  seal_profile(profile);
  return profile;
}

}  // namespace agpcs
