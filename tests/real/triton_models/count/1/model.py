"""Streams a prompt's number of words, one every 25 ms, and logs where it was when its client left.

The log line is how a test sees, from outside, when the engine stopped working for a request.
"""

import threading
import time

import numpy as np
import triton_python_backend_utils as triton

STEP_S = 0.025
LOOK_S = 0.002


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = triton.get_input_tensor_by_name(request, "text_input").as_numpy()
            limit = triton.get_input_tensor_by_name(request, "max_tokens")
            word = text.reshape(-1)[0].decode()
            count = 4 if limit is None else int(limit.as_numpy().reshape(-1)[0])
            threading.Thread(target=self.speak, args=(request.get_response_sender(), word, count), daemon=True).start()

    def speak(self, sender, word, count):
        for number in range(count):
            until = time.monotonic() + STEP_S
            while time.monotonic() < until:
                if sender.is_cancelled():
                    print(f"count: left at {number} of {count}, {time.time_ns()}", flush=True)
                    sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                    return
                time.sleep(LOOK_S)
            text = np.array([f"{word}{number} ".encode()], dtype=np.object_)
            sender.send(triton.InferenceResponse([triton.Tensor("text_output", text)]))
        sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
