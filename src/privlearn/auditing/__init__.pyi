from privlearn.auditing.bounds import one_run_epsilon as one_run_epsilon
from privlearn.auditing.canaries import audit_training as audit_training
from privlearn.auditing.distinguishing import distinguish as distinguish
from privlearn.auditing.installation import selfcheck as selfcheck
from privlearn.auditing.report import Audit as Audit
from privlearn.auditing.steps import audit as audit
