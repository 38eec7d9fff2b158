"""Sites marked ``infer={"enumerate": "parallel"}``: from what a program says about them to one elimination along time."""
