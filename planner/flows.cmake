# SPDX-License-Identifier: Apache-2.0
# All-reduces scheduled on topologies: bounds, methods, search. Apart from the planner of steps, which uses it.
agpcs_library(flows FOLDER planner
  SOURCES
    hops.cc
  DEPS ir cost_model)
