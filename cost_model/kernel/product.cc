// SPDX-License-Identifier: Apache-2.0
#include "cost_model/kernel/product.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace agpcs {
namespace {

constexpr double kStep = 8;            // a block steps through a sum in eights
constexpr double kShortestPart = 128;  // of a sum that is split
constexpr double kEnoughBlocks = 8;    // for each processor: with more, no sum is split
constexpr Tile kTiles[] = {{32, 32}, {128, 16}, {16, 128}};
constexpr Tile kTensorTiles[] = {{256, 128}, {128, 256}, {128, 128}, {128, 64},
                                 {64, 128},  {64, 64},   {128, 32},  {32, 128}};

double rounded_up(double extent, double to) { return std::ceil(extent / to) * to; }

/// Returns the terms of one part of a split sum.
double part_of(double k, double parts) {
  const double part = rounded_up(k / parts, kStep);
  return parts == 1 ? part : std::max(kShortestPart, part);
}

double seconds_of(const KernelDevice& device, const KernelParameters& parameters,
                  const Product& product, const ProductPlan& plan, const Tile& tile, double parts) {
  const double blocks =
      product.batch * std::ceil(product.m / tile.m) * std::ceil(product.n / tile.n) * parts;
  const double outputs = 2 * tile.m * tile.n;
  const double operations = outputs * part_of(product.k, parts);
  const double reach = device.tensor_cores ? parameters.tensor_reach : plan.reach;
  const double block_seconds = operations / (device.peak / device.processors * reach);
  const double fill = device.tensor_cores ? parameters.tensor_fill : parameters.fill;
  const double arithmetic = block_seconds * (std::ceil(blocks / device.processors) + fill);
  const double powered =
      blocks * (operations + outputs * plan.output_energy) - plan.zeros * product.operations();
  const double computing = std::max(arithmetic, powered / device.sustained);
  const double memory = plan.bytes / device.bandwidth;
  const double p = parameters.overlap;
  const double sums = parts == 1 ? 0 : 4 * product.batch * product.m * product.n * (2 * parts - 1);
  return std::pow(std::pow(computing, p) + std::pow(memory, p), 1 / p) + sums / device.bandwidth;
}

}  // namespace

double product_seconds(const KernelDevice& device, const KernelParameters& parameters,
                       const Product& product, const ProductPlan& plan) {
  double best = std::numeric_limits<double>::infinity();
  std::span<const Tile> tiles = kTiles;
  if (!plan.tiles.empty()) tiles = plan.tiles;
  if (device.tensor_cores) tiles = kTensorTiles;
  for (const Tile& tile : tiles) {
    const double blocks =
        product.batch * std::ceil(product.m / tile.m) * std::ceil(product.n / tile.n);
    for (double parts = 1; parts <= plan.most_parts; parts *= 2) {
      if (parts > 1 && product.k <= kShortestPart * parts / 2) break;
      best = std::min(best, seconds_of(device, parameters, product, plan, tile, parts));
      if (blocks * parts >= kEnoughBlocks * device.processors) break;
    }
  }
  return best;
}

double product_seconds(const KernelDevice& device, const KernelParameters& parameters,
                       const Product& product) {
  ProductPlan plan;
  plan.bytes = device.element_bytes * product.elements();
  plan.output_energy = device.output_energy;
  return product_seconds(device, parameters, product, plan);
}

}  // namespace agpcs
