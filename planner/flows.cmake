# SPDX-License-Identifier: Apache-2.0
# All-reduces scheduled on topologies: bounds, methods, search. Apart from the planner of steps, which uses it.
agpcs_library(flows FOLDER planner
  SOURCES
    flow_bound.cc
    flow_forests.cc
    flow_greedy.cc
    flow_hamiltonian.cc
    flow_method.cc
    flow_parameter_server.cc
    flow_ring.cc
    flow_trees.cc
    hops.cc
    list_schedule.cc
    max_flow.cc
    split_switches.cc
    tree_packing.cc
  DEPS ir cost_model)
