# SPDX-License-Identifier: Apache-2.0
# The Gloo transport, a library of its own: the runtime is whole without it.
if(AGPCS_HAS_GLOO)
  agpcs_library(runtime_gloo FOLDER runtime INSTALL
    SOURCES gloo.cc gloo_error.cc
    DEPS runtime ir
    PRIVATE_DEPS Gloo::Gloo)
endif()
