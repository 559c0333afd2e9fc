from privlearn.flower.teacher_client import teacher_app as teacher_app
from privlearn.flower.teachers import FlowerTeachers as FlowerTeachers
