from privlearn.flower.client_training import training_app as training_app
from privlearn.flower.federated import train_federated as train_federated
from privlearn.flower.teacher_client import teacher_app as teacher_app
from privlearn.flower.teachers import FlowerTeachers as FlowerTeachers
